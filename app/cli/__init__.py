"""`switchyard <noun> <verb>`: client of the API, output, options that commands share."""
