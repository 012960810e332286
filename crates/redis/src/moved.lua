-- Ends a migration after all rows have moved: renames the members of the list of changed namespaces, and sets the present schema.
-- KEYS: rows, keys, expiries, changes. ARGV: the schema, the prefix of the new names, and the first components that moved.
-- Returns the schema.
local rows, changes = KEYS[1], KEYS[4]
if redis.call('HGET', rows, '.schema') ~= '2' then
  return {redis.call('HGET', rows, '.schema') or ''}
end
local members = redis.call('ZRANGE', changes, 0, -1, 'WITHSCORES')
for index = 1, #members, 2 do
  for first = 3, #ARGV do
    local start = ARGV[first] .. '/'
    if string.sub(members[index], 1, #start) == start then
      redis.call('ZADD', changes, members[index + 1], ARGV[2] .. members[index])
      redis.call('ZREM', changes, members[index])
    end
  end
end
redis.call('HSET', rows, '.schema', ARGV[1])
return {ARGV[1]}
