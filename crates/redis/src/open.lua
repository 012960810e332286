-- Creates an empty store, or checks the existing one. It also performs every kind of write that a batch does, on names
-- that hold nothing, so that a user without the permissions is rejected here instead of in the middle of a batch. A
-- store with another schema is left unchanged.
-- KEYS: rows, keys, expiries, changes. ARGV: the schema, whether a store that is missing is created (1 or 0), and the version that it
-- begins with. Returns the schema and the version that the store has.
local rows, keys, expiries, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if ARGV[2] == '0' and redis.call('EXISTS', rows) == 0 then
  return {'none'}
end
local refused = redis.pcall('HSETNX', rows, '.schema', ARGV[1])
if type(refused) == 'table' and refused.err then
  return refused
end
if redis.call('HGET', rows, '.schema') ~= ARGV[1] then
  return redis.call('HMGET', rows, '.schema', '.version')
end
redis.call('HSETNX', rows, '.version', ARGV[3])
redis.call('HSETNX', rows, '.turns', '0')
redis.call('HSET', rows, '.opened', '1')
redis.call('HDEL', rows, '.opened')
redis.call('HINCRBY', rows, '.turns', 0)
-- A permanent member keeps each key in existence. So scripts never meet a missing key, which in a cluster might also be
-- migrating to another node.
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
