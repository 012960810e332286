-- Renames members of the list of changed namespaces after all rows have moved, and sets the schema.
-- KEYS: rows, keys, expiries, changes. ARGV: schema before the step and during it, the schema to set, and for each member its name
-- and its new name, which is '' for one that is removed. Returns the schema.
local rows, changes = KEYS[1], KEYS[4]
local schema = redis.call('HGET', rows, '.schema')
if schema ~= ARGV[1] and schema ~= ARGV[2] then
  return {schema or ''}
end
for index = 4, #ARGV, 2 do
  local from, to = ARGV[index], ARGV[index + 1]
  local changed = redis.call('ZSCORE', changes, from)
  if changed then
    if to ~= '' then
      redis.call('ZADD', changes, changed, to)
    end
    redis.call('ZREM', changes, from)
  end
end
redis.call('HSET', rows, '.schema', ARGV[3])
return {ARGV[3]}
