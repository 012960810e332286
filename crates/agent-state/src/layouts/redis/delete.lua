-- Deletes a key in both forms. KEYS: value, counter, list, its hash, set of the session's keys. ARGV: the members of the set.
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('SREM', KEYS[5], ARGV[1], ARGV[2])
return 1
