"""What a decision acts through; each actuator knows its range and undoes itself."""
