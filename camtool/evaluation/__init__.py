"""Methods at layers, judged by metrics on the user's model and images."""
