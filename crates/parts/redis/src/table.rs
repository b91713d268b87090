//! The table of commands that are understood, and those that are refused with a reason.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Auth,
    Client,
    Command,
    Config,
    CortexHash,
    CortexHead,
    CortexHelp,
    CortexHistory,
    CortexPrefix,
    CortexSquash,
    CortexSync,
    CortexUnwatch,
    CortexUser,
    CortexWatch,
    Dbsize,
    Del,
    Echo,
    Eval,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    Get,
    GetDel,
    Hello,
    Info,
    Keys,
    Mget,
    Mset,
    Persist,
    Pexpire,
    PexpireAt,
    PexpireTime,
    Ping,
    PsetEx,
    Psubscribe,
    Pttl,
    Publish,
    Pubsub,
    Punsubscribe,
    Quit,
    Reset,
    Scan,
    Select,
    Set,
    SetEx,
    Strlen,
    Subscribe,
    Time,
    Ttl,
    Type,
    Unsubscribe,
    Wait,
}

#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub verb: Verb,
    /// The number of words with the command's own name; negative if it is the least number.
    pub arity: i32,
    pub writes: bool,
    /// The first and last key and the step between, as `COMMAND` tells them.
    pub keys: (i32, i32, i32),
    pub summary: &'static str,
}

impl Spec {
    /// Returns whether an application may use the command in its own space: not those that take
    /// keys of the store as they are, or that are about the store as a whole.
    pub fn is_for_applications(&self) -> bool {
        !self.name.starts_with("CORTEX.") && self.verb != Verb::Config
    }
}

const fn spec(
    name: &'static str,
    verb: Verb,
    arity: i32,
    keys: (i32, i32, i32),
    summary: &'static str,
) -> Spec {
    Spec { name, verb, arity, writes: false, keys, summary }
}

const fn write(
    name: &'static str,
    verb: Verb,
    arity: i32,
    keys: (i32, i32, i32),
    summary: &'static str,
) -> Spec {
    Spec { name, verb, arity, writes: true, keys, summary }
}

const NO_KEY: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

/// The commands, sorted by name.
pub static TABLE: &[Spec] = &[
    spec("AUTH", Verb::Auth, -2, NO_KEY, "Says who you are: AUTH [user] token"),
    spec("CLIENT", Verb::Client, -2, NO_KEY, "Names and lists connections"),
    spec("COMMAND", Verb::Command, -1, NO_KEY, "Describes the commands"),
    spec("CONFIG", Verb::Config, -2, NO_KEY, "CONFIG GET pattern"),
    spec("CORTEX.HASH", Verb::CortexHash, 2, ONE_KEY, "SHA-1 of a key's value"),
    spec("CORTEX.HEAD", Verb::CortexHead, 1, NO_KEY, "The id of the whole history"),
    spec("CORTEX.HELP", Verb::CortexHelp, 1, NO_KEY, "Lists the commands of this store's own"),
    spec("CORTEX.HISTORY", Verb::CortexHistory, -2, NO_KEY, "CORTEX.HISTORY prefix [LIMIT n]"),
    spec("CORTEX.PREFIX", Verb::CortexPrefix, -2, NO_KEY, "CORTEX.PREFIX prefix [KEYS]"),
    write("CORTEX.SQUASH", Verb::CortexSquash, -1, NO_KEY, "CORTEX.SQUASH [before-milliseconds]"),
    spec("CORTEX.SYNC", Verb::CortexSync, 1, NO_KEY, "Compares histories with other nodes now"),
    spec("CORTEX.UNWATCH", Verb::CortexUnwatch, 1, NO_KEY, "Ends this connection's watch"),
    write("CORTEX.USER", Verb::CortexUser, -2, NO_KEY, "CORTEX.USER SET|DEL|LIST …"),
    spec("CORTEX.WATCH", Verb::CortexWatch, -2, NO_KEY, "CORTEX.WATCH prefix [cursor]"),
    spec("DBSIZE", Verb::Dbsize, 1, NO_KEY, "How many keys have a value"),
    write("DEL", Verb::Del, -2, ALL_KEYS, "Deletes keys"),
    spec("ECHO", Verb::Echo, 2, NO_KEY, "Returns its argument"),
    spec("EVAL", Verb::Eval, -3, NO_KEY, "Carries out the script with which Laravel broadcasts"),
    spec("EXISTS", Verb::Exists, -2, ALL_KEYS, "How many of the keys have a value"),
    write("EXPIRE", Verb::Expire, 3, ONE_KEY, "Ends a value after seconds"),
    write("EXPIREAT", Verb::ExpireAt, 3, ONE_KEY, "Ends a value at a UNIX time"),
    spec("EXPIRETIME", Verb::ExpireTime, 2, ONE_KEY, "The UNIX time at which a value ends"),
    spec("GET", Verb::Get, 2, ONE_KEY, "A key's value"),
    write("GETDEL", Verb::GetDel, 2, ONE_KEY, "A key's value, which is deleted"),
    spec("HELLO", Verb::Hello, -1, NO_KEY, "Chooses the version of the protocol"),
    spec("INFO", Verb::Info, -1, NO_KEY, "About this node"),
    spec("KEYS", Verb::Keys, 2, NO_KEY, "Keys that match a pattern"),
    spec("MGET", Verb::Mget, -2, ALL_KEYS, "Values of keys"),
    write("MSET", Verb::Mset, -3, PAIRS, "Sets keys, one commit each"),
    write("PERSIST", Verb::Persist, 2, ONE_KEY, "Takes away a value's end"),
    write("PEXPIRE", Verb::Pexpire, 3, ONE_KEY, "Ends a value after milliseconds"),
    write("PEXPIREAT", Verb::PexpireAt, 3, ONE_KEY, "Ends a value at a UNIX time in milliseconds"),
    spec("PEXPIRETIME", Verb::PexpireTime, 2, ONE_KEY, "When a value ends, in milliseconds"),
    spec("PING", Verb::Ping, -1, NO_KEY, "Answers PONG"),
    write("PSETEX", Verb::PsetEx, 4, ONE_KEY, "PSETEX key milliseconds value"),
    spec("PSUBSCRIBE", Verb::Psubscribe, -2, NO_KEY, "Listens to channels that match patterns"),
    spec("PTTL", Verb::Pttl, 2, ONE_KEY, "Milliseconds until a value ends"),
    spec("PUBLISH", Verb::Publish, 3, NO_KEY, "Sends a message to whoever listens, on all nodes"),
    spec("PUBSUB", Verb::Pubsub, -2, NO_KEY, "PUBSUB CHANNELS|NUMSUB|NUMPAT"),
    spec("PUNSUBSCRIBE", Verb::Punsubscribe, -1, NO_KEY, "Stops listening to patterns"),
    spec("QUIT", Verb::Quit, -1, NO_KEY, "Ends the connection"),
    spec("RESET", Verb::Reset, 1, NO_KEY, "Makes the connection as new"),
    spec("SCAN", Verb::Scan, -2, NO_KEY, "Keys, page by page"),
    spec("SELECT", Verb::Select, 2, NO_KEY, "There is database 0"),
    write(
        "SET",
        Verb::Set,
        -3,
        ONE_KEY,
        "Sets a key: SET key value [EX|PX|EXAT|PXAT n] [KEEPTTL] [GET]",
    ),
    write("SETEX", Verb::SetEx, 4, ONE_KEY, "SETEX key seconds value"),
    spec("STRLEN", Verb::Strlen, 2, ONE_KEY, "The length of a key's value"),
    spec("SUBSCRIBE", Verb::Subscribe, -2, NO_KEY, "Listens to channels"),
    spec("TIME", Verb::Time, 1, NO_KEY, "This node's clock"),
    spec("TTL", Verb::Ttl, 2, ONE_KEY, "Seconds until a value ends"),
    spec("TYPE", Verb::Type, 2, ONE_KEY, "string, or none"),
    write("UNLINK", Verb::Del, -2, ALL_KEYS, "Deletes keys"),
    spec("UNSUBSCRIBE", Verb::Unsubscribe, -1, NO_KEY, "Stops listening to channels"),
    spec("WAIT", Verb::Wait, 3, NO_KEY, "Waits for peers to hold what was written"),
];

/// The length of a name in bytes: that of the longest, `CORTEX.HISTORY`, and some.
const NAME_BYTES_MAX: usize = 24;

/// Returns the specification of a command, whatever the case of its name.
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut upper = [0; NAME_BYTES_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let index = TABLE.binary_search_by(|spec| spec.name.as_bytes().cmp(upper)).ok()?;
    Some(&TABLE[index])
}

const LOCKS: &str = "a node may not know of a newer write elsewhere, so locks and conditions made \
                     of it do not hold; use plain SET, or a store with agreement such as etcd";
const COUNTERS: &str = "two nodes would each add to what they know, and one sum would be lost; \
                        write one key per writer and add them up when reading";
const PARTS: &str = "the last writer of a key wins its whole value; read, change and SET it, or \
                     give each part a key of its own";
pub const TOGETHER: &str = "keys travel one by one, and nothing makes several of them change at once; \
                        put what belongs together into one value";
const SHAPES: &str = "values are strings of bytes; give each element a key below a common prefix, \
                      and list them with CORTEX.PREFIX or SCAN";
const WHOLE: &str = "it would reach every node; delete the keys by name, as SCAN lists them";
const SERVER: &str = "this store has no such thing; CORTEX.HELP lists what it has";

static REFUSED: &[(&str, &[&str])] = &[
    (LOCKS, &["SETNX", "MSETNX", "WATCH", "UNWATCH"]),
    (COUNTERS, &["INCR", "INCRBY", "INCRBYFLOAT", "DECR", "DECRBY"]),
    (PARTS, &["APPEND", "SETRANGE", "SETBIT", "BITFIELD", "GETSET", "PFADD", "PFMERGE", "BITOP"]),
    (
        TOGETHER,
        &[
            "MULTI",
            "EXEC",
            "DISCARD",
            "EVALSHA",
            "EVAL_RO",
            "EVALSHA_RO",
            "SCRIPT",
            "FCALL",
            "FCALL_RO",
            "FUNCTION",
            "RENAME",
            "RENAMENX",
            "COPY",
            "MOVE",
            "SORT",
        ],
    ),
    (
        SHAPES,
        &[
            "LPUSH",
            "RPUSH",
            "LPOP",
            "RPOP",
            "LLEN",
            "LRANGE",
            "LINDEX",
            "LSET",
            "LREM",
            "LTRIM",
            "LINSERT",
            "LPUSHX",
            "RPUSHX",
            "LMOVE",
            "RPOPLPUSH",
            "BLPOP",
            "BRPOP",
            "BLMOVE",
            "BRPOPLPUSH",
            "HSET",
            "HSETNX",
            "HMSET",
            "HGET",
            "HMGET",
            "HGETALL",
            "HDEL",
            "HLEN",
            "HKEYS",
            "HVALS",
            "HEXISTS",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HSCAN",
            "HSTRLEN",
            "SADD",
            "SREM",
            "SCARD",
            "SMEMBERS",
            "SISMEMBER",
            "SMISMEMBER",
            "SPOP",
            "SRANDMEMBER",
            "SMOVE",
            "SINTER",
            "SUNION",
            "SDIFF",
            "SSCAN",
            "ZADD",
            "ZREM",
            "ZCARD",
            "ZRANGE",
            "ZREVRANGE",
            "ZRANGEBYSCORE",
            "ZSCORE",
            "ZRANK",
            "ZINCRBY",
            "ZCOUNT",
            "ZPOPMIN",
            "ZPOPMAX",
            "BZPOPMIN",
            "BZPOPMAX",
            "ZSCAN",
            "XADD",
            "XREAD",
            "XREADGROUP",
            "XGROUP",
            "XRANGE",
            "XLEN",
            "XACK",
            "XDEL",
            "XTRIM",
            "GEOADD",
            "GEOPOS",
            "GEOSEARCH",
            "GEODIST",
        ],
    ),
    (WHOLE, &["FLUSHALL", "FLUSHDB", "SWAPDB"]),
    (
        SERVER,
        &[
            "BGSAVE",
            "BGREWRITEAOF",
            "SAVE",
            "SHUTDOWN",
            "REPLICAOF",
            "SLAVEOF",
            "CLUSTER",
            "ACL",
            "MONITOR",
            "SYNC",
            "PSYNC",
            "DEBUG",
            "LATENCY",
            "SLOWLOG",
            "MEMORY",
            "MODULE",
            "FAILOVER",
            "MIGRATE",
            "DUMP",
            "RESTORE",
            "OBJECT",
            "RANDOMKEY",
            "TOUCH",
            "GETEX",
            "GETRANGE",
            "SPUBLISH",
            "SSUBSCRIBE",
            "SUNSUBSCRIBE",
        ],
    ),
];

/// Returns why a command of other servers is refused here; `None` if the command is unknown.
pub fn refusal(name: &str) -> Option<&'static str> {
    let found = REFUSED.iter().find(|(_, names)| names.contains(&name));
    found.map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_found_in_any_case() {
        assert!(TABLE.windows(2).all(|pair| pair[0].name < pair[1].name));
        for spec in TABLE {
            let found = find(spec.name.to_lowercase().as_bytes()).unwrap();
            assert_eq!(found.name, spec.name);
            assert!(refusal(spec.name).is_none(), "{}", spec.name);
        }
        assert!(find(b"NOTHING").is_none());
        assert!(find(&[b'A'; 100]).is_none());
    }
}
