"""What may have caused an alert: hypotheses that are judged by what is known of the training, with remedies."""
