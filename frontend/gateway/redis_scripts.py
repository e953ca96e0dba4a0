"""What Redis itself computes: the arithmetic of bucket.py in Lua. A test holds both to the same answers."""

from __future__ import annotations

_LEVELS = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

-- What is left of both rates, as of now.
local function levels(key, requests_limit, tokens_limit)
  local kept = redis.call('HMGET', key, 'requests', 'tokens', 'at')
  local elapsed = math.max(0, now - (tonumber(kept[3]) or now))
  local function refilled(level, limit)
    return math.min(limit, (tonumber(level) or limit) + elapsed * limit / 60)
  end
  return refilled(kept[1], requests_limit), refilled(kept[2], tokens_limit)
end

local function keep(key, requests, tokens)
  local format = '%.17g'
  redis.call('HSET', key, 'requests', format:format(requests), 'tokens', format:format(tokens),
    'at', format:format(now))
  redis.call('EXPIRE', key, 180)  -- by then both are full
end
"""

# KEYS: levels and leases of each scope. ARGV: lease, tokens, seconds of a lease; limits of each scope.
# Answer: 0 or the scope that refuses; why: 1 requests, 2 tokens, 3 concurrency; then the levels of each scope.
TAKE = (
    _LEVELS
    + """
local lease, num_tokens, lease_s = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local refused, why = 0, 0
local left = {}
for scope = 1, #KEYS / 2 do
  local first = 3 * scope
  local requests_limit = tonumber(ARGV[first + 1])
  local tokens_limit = tonumber(ARGV[first + 2])
  local max_concurrent = tonumber(ARGV[first + 3])
  local requests, tokens = levels(KEYS[2 * scope - 1], requests_limit, tokens_limit)
  left[2 * scope - 1], left[2 * scope] = requests, tokens
  if refused == 0 then
    local leases = KEYS[2 * scope]
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
    if requests_limit > 0 and requests < 1 then
      refused, why = scope, 1
    elseif tokens_limit > 0 and tokens < num_tokens then
      refused, why = scope, 2
    elseif max_concurrent > 0 and redis.call('ZCARD', leases) >= max_concurrent then
      refused, why = scope, 3
    end
  end
end
for scope = 1, #KEYS / 2 do
  if refused == 0 then
    left[2 * scope - 1] = left[2 * scope - 1] - 1
    left[2 * scope] = left[2 * scope] - num_tokens
    keep(KEYS[2 * scope - 1], left[2 * scope - 1], left[2 * scope])
    redis.call('ZADD', KEYS[2 * scope], now + lease_s, lease)
    redis.call('EXPIRE', KEYS[2 * scope], 2 * lease_s)
  end
end
local answer = {tostring(refused), tostring(why)}
for index, level in ipairs(left) do
  answer[index + 2] = string.format('%.17g', level)
end
return answer
"""
)

# KEYS: as above. ARGV: lease; requests and tokens to put back, negative to take; limits of each scope.
SETTLE = (
    _LEVELS
    + """
local lease, num_requests, num_tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
for scope = 1, #KEYS / 2 do
  local first = 3 * scope
  local requests_limit, tokens_limit = tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local requests, tokens = levels(KEYS[2 * scope - 1], requests_limit, tokens_limit)
  local function added(level, amount, limit)
    return math.min(limit, math.max(-limit, level + amount))
  end
  keep(KEYS[2 * scope - 1], added(requests, num_requests, requests_limit), added(tokens, num_tokens, tokens_limit))
  redis.call('ZREM', KEYS[2 * scope], lease)
end
"""
)
