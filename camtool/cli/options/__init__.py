"""Options of the commands, one file for each subject: their types, and how their texts are parsed."""
