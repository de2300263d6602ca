"""A report to look at: one HTML file with everything in it, made of what runs, checks and benches have saved.

given      what the paths hold: runs, checks, benches
parts      what a page is made of: sections with words, figures and tables
figures    the drawings, by Plotly
of_run, of_runs, of_check, of_bench    a section each
page       from sections to one HTML file; its look is page.css, its few lines of JavaScript page.js
"""
