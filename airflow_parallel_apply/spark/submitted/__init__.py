"""Work that runs in the driver of an application of its own, submitted to a cluster.

::

    Airflow's task ── socket ── driver (Python) ── py4j ── spark-submit (JVM) ── executors
     `process`                  `driver`

A submit takes ten seconds and more, so that a driver does more than one job: a lane's whole claim loop, or all jobs of
an initial copy. Everything that is secret goes through the socket, which lies in a directory of its user's own; nothing
of it is in arguments, environment or Spark's settings, which others can see.

Who outlives whom: nobody. The socket's end tells the driver that its task is gone, and it leaves; the driver's end ends
the JVM, and that the application. The kernel kills a driver whose JVM is gone.
"""
