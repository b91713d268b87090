//! What only connections of applications need: the limits of their space, and what they are told.

use model::key::bus_prefix;
use model::{Key, Prefix};
use store::INLINE_VALUE_MAX;

use super::describe::COMPATIBLE_VERSION;
use super::{Connection, Problem, Rights};
use crate::space::{AllCounted, COUNTED_AGAIN, Counted, KEYS_MAX};

impl Connection {
    /// Returns the only user whose connections may be listed; `None` for all.
    pub(super) fn own_user(&self) -> Option<&str> {
        match &self.rights {
            Rights::Application(space) => Some(space.application.as_str()),
            _ => None,
        }
    }

    /// Returns the keys below a prefix, one more than an application may have at most.
    pub(super) async fn keys_below(&self, prefix: &Prefix) -> Result<Vec<Key>, Problem> {
        Ok(self.context.store.keys_after(prefix, None, KEYS_MAX + 1).await?)
    }

    /// Checks that a key may get a value: the number of an application's keys is bounded, and so
    /// are values. Keys are counted again now and then, as other nodes write, too.
    pub(super) async fn room_for(&self, key: &Key, value: &[u8]) -> Result<(), Problem> {
        let Rights::Application(space) = &self.rights else { return Ok(()) };
        if value.len() > INLINE_VALUE_MAX {
            return Err(too_large());
        }
        let (application, now) = (&space.application, self.context.clock.now());
        let last = self.counted(|all| all.get(application).copied());
        let fresh = last.filter(|last| now.since(last.at) < COUNTED_AGAIN);
        let Counted { at, keys } = match fresh {
            Some(counted) => counted,
            None => {
                let keys = self.keys_below(&bus_prefix(application)).await?.len();
                Counted { at: now, keys }
            }
        };
        let is_new = keys < KEYS_MAX || self.context.store.lookup_hash(key).await?.is_none();
        if is_new && keys >= KEYS_MAX {
            return Err(Problem::error(format!(
                "an application has at most {KEYS_MAX} keys on the bus; delete some, let them \
                 expire (EX), or use a database of your own"
            )));
        }
        let keys = keys + usize::from(is_new);
        self.counted(|all| all.insert(application.clone(), Counted { at, keys }));
        Ok(())
    }

    fn counted<T>(&self, look: impl FnOnce(&mut AllCounted) -> T) -> T {
        look(&mut runtime::lock::locked(&self.context.counted))
    }

    /// Returns what `INFO` tells an application, which is nothing about others.
    pub(super) async fn info_of_space(&self) -> Result<Option<String>, Problem> {
        let Rights::Application(space) = &self.rights else { return Ok(None) };
        let keys = self.keys_below(&space.prefix()).await?.len();
        Ok(Some(format!(
            "# Server\r\nredis_version:{COMPATIBLE_VERSION}\r\ncortex_version:{}\r\n\
             redis_mode:standalone\r\n\r\n# Replication\r\nrole:master\r\n\r\n# Keyspace\r\n\
             db{}:keys={keys},expires=0,avg_ttl=0\r\n",
            env!("CARGO_PKG_VERSION"),
            space.database
        )))
    }
}

pub fn too_large() -> Problem {
    Problem::error(format!(
        "a value on the bus has at most {INLINE_VALUE_MAX} bytes; what is larger belongs below \
         $CORTEX_PERSIST, or into a database of your own"
    ))
}
