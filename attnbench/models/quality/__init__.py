"""What a variant costs a model: trained from scratch on a task, or put into one that is trained."""
