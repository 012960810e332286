-- Deletes a session. KEYS: set of its keys, everything that belongs to them. ARGV: the members of the set.
-- Returns 0 if the set has other members meanwhile.
if redis.call('SCARD', KEYS[1]) ~= #ARGV then return 0 end
for index = 1, #ARGV do
  if redis.call('SISMEMBER', KEYS[1], ARGV[index]) == 0 then return 0 end
end
for index = 1, #KEYS do redis.call('DEL', KEYS[index]) end
return 1
