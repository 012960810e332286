-- Saves a value. Interoperates with AgentScope's script: the same keys, the same counter.
-- KEYS: value, counter, set of the session's keys. ARGV: value, expectation, member of the set.
-- Returns {1, new version}, or as `as_expected` if nothing was saved.
local count, refused = as_expected(KEYS[1], KEYS[2], ARGV[2])
if refused then return refused end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], count + 1)
redis.call('SADD', KEYS[3], ARGV[3])
return {1, count + 1}
