"""The initial copy: the rows that were there before the stream, under the stream's own snapshot.

::

    selection ─▶ tables held ─▶ stream, snapshot ─▶ record, tables ─▶ parts ─▶ loaded ─▶ indexes ─▶ finished ─▶ log
      source          source         source           target        Spark     target     target      target

Nothing is captured before the last step, and whoever finds a selection that is still *being prepared* begins anew:
the stream is dropped, and with it the snapshot's meaning; what the record says was made is dropped, what it says was
filled is emptied, and nothing else is touched.
"""
