"""Models and tokenizers: loading, training from scratch, generation, and minGPT."""
