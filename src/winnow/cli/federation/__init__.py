"""The commands of people: submit jobs to a federation, watch them, fetch what came of them."""
