/**
 * The sliding window of `hit` on the server: one-second buckets in a hash, on the server's clock, so that processes whose
 * clocks differ agree. Counts one bucket more than the window has seconds, for the same reason as the memory driver.
 */
export const hitScript = `
local time = redis.call('TIME')
local second = tonumber(time[1])
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local all = redis.call('HGETALL', KEYS[1])
local count, oldest, gone = 0, second, {}
for i = 1, #all, 2 do
  local at = tonumber(all[i])
  if at < second - window then
    gone[#gone + 1] = all[i]
  else
    count = count + tonumber(all[i + 1])
    if at < oldest then oldest = at end
  end
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
if count >= limit then
  return {0, count, (oldest + window + 1 - second) * 1000 - math.floor(tonumber(time[2]) / 1000)}
end
redis.call('HINCRBY', KEYS[1], second, 1)
redis.call('EXPIRE', KEYS[1], window + 1)
return {1, count + 1, 0}
`
