"""What SpecForge's prompt loader makes of a file: run by SpecForge's own Python, prints a digest a row as JSON."""

import hashlib
import json
import sys

from specforge.data.prompt_builder import prepare_prompt_tasks

path, max_length, fewest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tasks = prepare_prompt_tasks(
    path,
    None,
    chat_template=None,
    max_length=max_length,
    is_preformatted=False,
    train_only_last_turn=False,
    cache_dir=None,
    cache_key=None,
    num_proc=None,
    min_loss_tokens=fewest,
)
rows = [(task["payload"]["input_ids"], task["payload"]["loss_mask"]) for task in tasks]
print(json.dumps([hashlib.sha256(json.dumps(row).encode()).hexdigest() for row in rows]))
