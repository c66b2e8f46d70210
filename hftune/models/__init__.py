"""Networks and tokenizers: loading what exists, and our own architectures in one folder each."""
