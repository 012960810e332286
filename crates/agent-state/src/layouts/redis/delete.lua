-- Deletes a key. KEYS: value, counter, list, its hash, set of the session's keys.
-- ARGV: `single`, `list` or `both`, expectation of the value, the members of the set: that of the value, that of the list.
-- Returns {1}, or as `as_expected` if nothing was deleted. Without an expectation, damaged data is deleted too.
if ARGV[2] ~= 'any' then
  local _, refused = as_expected(KEYS[1], KEYS[2], ARGV[2])
  if refused then return refused end
end
if ARGV[1] ~= 'list' then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('SREM', KEYS[5], ARGV[3])
end
if ARGV[1] ~= 'single' then
  redis.call('DEL', KEYS[3], KEYS[4])
  redis.call('SREM', KEYS[5], ARGV[4])
end
return {1}
