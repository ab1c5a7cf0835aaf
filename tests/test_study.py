"""The short form of the study: a capture by the real SGLang, two heads by speculators, one direction asserted."""

from pathlib import Path

import pytest

from rawtokens.study.__main__ import main
from rawtokens.study.results import acceptance_table, read_study

# Five seeds of the short form, 3,487 ids each: verbatim 1.86 (sd 0.03), template 1.43 (sd 0.05).
MARGIN = 0.15


@pytest.mark.study
def test_a_head_trained_on_the_capture_drafts_further_than_one_trained_by_the_template(
    tmp_path: Path, demo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = ["--form", "short", "--folder", str(tmp_path / "study"), "--model", str(demo_folder)]
    assert main(study) == 0
    found = read_study(tmp_path / "study")
    verbatim, template = found.arms
    assert verbatim.supervised_ids == template.supervised_ids
    assert [head.rows for head in found.heads] == [verbatim.rows, template.rows]
    assert all(len(head.counts) == found.sequences for head in found.heads)
    table = acceptance_table(found)
    assert table["length"]["verbatim"] > 1.3
    assert table["difference"]["template"] < -MARGIN
    assert (tmp_path / "study" / "reports" / "06_compare_drafters.html").stat().st_size > 10_000
    capsys.readouterr()
    assert main(study) == 0  # what is there is not made again
    assert "0 of 2 heads to train" in capsys.readouterr().out
    assert read_study(tmp_path / "study") == found
