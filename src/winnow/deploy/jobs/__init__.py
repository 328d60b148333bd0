"""What runs inside the processes of a job, at the server and at the sites."""
