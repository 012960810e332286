-- Makes an empty store, or meets the one that is there; and does every kind of write that a batch does, on names that hold
-- nothing, so that a user who may not is refused here and not in the middle of a batch. A store of another schema is left as
-- it is.
-- KEYS: rows, keys, expiries, changes. ARGV: the schema. Returns the schema and the version that are there.
local rows, keys, expiries, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refused = redis.pcall('HSETNX', rows, '.schema', ARGV[1])
if type(refused) == 'table' and refused.err then
  return refused
end
if redis.call('HGET', rows, '.schema') ~= ARGV[1] then
  return redis.call('HMGET', rows, '.schema', '.version')
end
redis.call('HSETNX', rows, '.version', '0')
redis.call('HSETNX', rows, '.turns', '0')
redis.call('HSET', rows, '.opened', '1')
redis.call('HDEL', rows, '.opened')
redis.call('HINCRBY', rows, '.turns', 0)
-- A member that is always there keeps each of the keys: a script never meets one that is missing, which in a cluster could
-- as well be on its way to another node.
redis.call('ZADD', keys, 'NX', 0, '')
redis.call('ZADD', expiries, 'NX', '+inf', '')
redis.call('ZADD', changes, 'NX', 0, '')
redis.call('ZREM', keys, '.opened')
redis.call('ZREMRANGEBYRANK', changes, 1, 0)
redis.call('ZRANGEBYLEX', keys, '-', '+', 'LIMIT', 0, 1)
redis.call('ZRANGEBYSCORE', expiries, '-inf', 0, 'LIMIT', 0, 1)
redis.call('ZRANGE', changes, 0, 0, 'WITHSCORES')
redis.call('ZSCORE', changes, '')
redis.call('ZCARD', changes)
redis.call('HLEN', rows)
redis.call('HSTRLEN', rows, '.schema')
return redis.call('HMGET', rows, '.schema', '.version')
