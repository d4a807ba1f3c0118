"""A target in MariaDB or MySQL: rows and positions in InnoDB tables, which one transaction moves together.

Staging is made and dropped outside of that transaction, since there each definition of a table commits by itself. So a
staging table's name says whose it is, and whoever takes a channel drops what its former holders left.
"""
