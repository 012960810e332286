-- Saves a list: adds to it what is new, or replaces it. Returns 1 if it changed.
-- KEYS: list, its hash, set of the session's keys. ARGV: hash, member of the set, the elements.
local stored = redis.call('LRANGE', KEYS[1], 0, -1)
local count = #ARGV - 2
local is_start = #stored <= count
for index = 1, #stored do
  if not is_start then break end
  is_start = stored[index] == ARGV[index + 2]
end
redis.call('SADD', KEYS[3], ARGV[2])
-- The hash of an unchanged list stays: it may be that of a running AgentScope.
if is_start and #stored == count and redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local first = #stored + 1
if not is_start then
  redis.call('DEL', KEYS[1])
  first = 1
end
for start = first, count, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, start + 2, math.min(start + 999, count) + 2))
end
redis.call('SET', KEYS[2], ARGV[1])
return 1
