"""What a person looks at: report.html, figures, the terminal, the page on what leaves a client."""
