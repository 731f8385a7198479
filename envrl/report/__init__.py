"""What a person looks at after a run: the table, and report.html.

`table` needs rich alone and is shown at every run's end; `page` brings plotly and Jinja.
"""
