-- Decides about the stored value before a change. Arguments: its key, the key of its counter, the expectation.
-- The expectation is `any`, `absent`, `uncounted` (a value without a counter) or a version.
-- Returns the counter, 0 without one, or nil and the answer: {0, current version} for a conflict, {-1} for a damaged counter, {-2} for
-- data of another kind.
local function as_expected(value, counter, expected)
  local kind = redis.call('TYPE', value)['ok']
  if kind ~= 'string' and kind ~= 'none' then return nil, {-2} end
  local text = redis.call('GET', counter)
  local count = 0
  if text then
    count = tonumber(text)
    if not count or count < 0 or count ~= math.floor(count) or count > 9007199254740990 then return nil, {-1} end
  end
  local exists = kind == 'string'
  if expected == 'any'
    or (expected == 'absent' and not exists)
    or (expected == 'uncounted' and exists and count == 0)
    or (exists and count > 0 and tonumber(expected) == count) then return count end
  if not exists then return nil, {0, 0} end
  if count == 0 then return nil, {0, -1} end
  return nil, {0, count}
end
