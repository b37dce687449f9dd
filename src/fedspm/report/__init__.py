"""What a person looks at: report.html, figures, the terminal."""
