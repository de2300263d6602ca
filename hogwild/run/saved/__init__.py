"""A run on disk: what its folder holds, how each file is written whole, and how it is read back.

directory, writer      the folder itself, and who writes in it
origin, begun_with     which run this is: of what model (structure), where (environment, fingerprint), of what settings
metrics, befallen, notes, failure    what was measured, what befell workers, what is told, why it ended
checkpoint, saved_tables, best       versions of the model
record, found, setting_words          a folder read back; folders looked for; what a person calls their settings
"""
