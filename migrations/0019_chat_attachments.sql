-- owner: plugins/chat
-- What came with a message, without its content: [{name?, mediaType}].

-- json, not jsonb: a name may hold \u0000, which jsonb refuses.
ALTER TABLE messages ADD COLUMN attachments json;
