"""The target model's tokenizer and chat template: conversations to text, text to ids, and the marks that ids bear."""
