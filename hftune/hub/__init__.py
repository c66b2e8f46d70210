"""Publishing on the Hugging Face Hub: the model card, the upload, the verification."""
