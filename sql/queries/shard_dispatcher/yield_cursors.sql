-- Gives back every cursor that a token still holds, due again after a delay.
-- On the control database; served by dispatch_cursors_open.
-- $1 token · $2 delay ms
UPDATE runherd.dispatch_cursors c
SET lease_expires_at = 'epoch', next_dispatch_at = now() + $2::bigint * interval '1 ms'
WHERE c.status = 'open' AND c.lease_token = $1::uuid AND c.lease_expires_at > now()
