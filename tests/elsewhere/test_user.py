"""The values of users, used from another node."""

from tests.server.kv.test_user import *

# The message for a value that is not JSON is another one there.
del test_a_user_has_what_values_have
