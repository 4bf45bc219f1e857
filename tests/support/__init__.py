"""What the tests share: a server, a database for each test, and the three ways to reach it."""
