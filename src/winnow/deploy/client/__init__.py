"""What a person does from outside: submit, watch, fetch results."""
