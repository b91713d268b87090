//! Messages of peers: no bytes panic, and what is read means the same when written and read again.

use store_core::sync::wire;

pub fn check(bytes: &[u8]) {
    let Ok(decoded) = wire::decode(bytes) else { return };
    let mut again = Vec::new();
    wire::encode(&decoded.message, &decoded.values, &mut again);
    assert_eq!(wire::decode(&again).as_ref(), Ok(&decoded));
    let mut third = Vec::new();
    wire::encode(&decoded.message, &decoded.values, &mut third);
    assert_eq!(again, third, "one message has one encoding");
}
