-- Saves a value. Interoperates with AgentScope's script: the same keys, the same counter.
-- KEYS: value, counter, set of the session's keys. ARGV: value, expectation, member of the set.
-- The expectation is `any`, `absent`, `uncounted` (a value without a counter) or a version.
-- Returns {1, new version}, {0, current version} for a conflict, {-1} for a damaged counter, {-2} for data of another kind.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'string' and kind ~= 'none' then return {-2} end
local text = redis.call('GET', KEYS[2])
local count = 0
if text then
  count = tonumber(text)
  if not count or count < 0 or count ~= math.floor(count) or count > 9007199254740990 then return {-1} end
end
local exists = kind == 'string'
local expected = ARGV[2]
local as_expected = expected == 'any'
  or (expected == 'absent' and not exists)
  or (expected == 'uncounted' and exists and count == 0)
  or (exists and count > 0 and tonumber(expected) == count)
if not as_expected then
  if not exists then return {0, 0} end
  if count == 0 then return {0, -1} end
  return {0, count}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], count + 1)
redis.call('SADD', KEYS[3], ARGV[3])
return {1, count + 1}
