"""The store `channel_log`: a log for each channel, beside the log that it is made from."""
