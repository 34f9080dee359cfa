"""What may have caused an alert: causes that are judged by what is known of the training, with remedies."""
