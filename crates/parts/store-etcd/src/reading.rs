//! Reads the keys of a prefix: in pages, or all of them as they were at one revision.

use etcd_client::{GetOptions, KeyValue};
use model::{Key, Prefix};

use super::feed::Feed;
use super::link::LinkError;

/// The number of keys in a page: some megabytes with the largest records.
const PAGE_KEYS: i64 = 1000;
/// The number of attempts at a scan; one that takes so long that its revision is compacted begins
/// anew.
const ATTEMPTS_MAX: usize = 3;

/// What is read of each key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    Keys,
    Values,
}

/// Calls `visit` for each key in order. If the scan has to begin anew, keys come again.
pub async fn read_range(
    feed: &Feed,
    prefix: &Prefix,
    wanted: Projection,
    mut visit: impl FnMut(Key, &KeyValue),
) -> Result<(), LinkError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match read_once(feed, prefix, wanted, &mut visit).await {
            Err(LinkError::Compacted) if attempts < ATTEMPTS_MAX => {}
            other => return other,
        }
    }
}

async fn read_once(
    feed: &Feed,
    prefix: &Prefix,
    wanted: Projection,
    visit: &mut impl FnMut(Key, &KeyValue),
) -> Result<(), LinkError> {
    let mut revision = 0;
    for (mut from, to) in feed.space.ranges(prefix) {
        loop {
            let mut options = GetOptions::new()
                .with_range(to.clone())
                .with_limit(PAGE_KEYS)
                .with_revision(revision);
            if wanted == Projection::Keys {
                options = options.with_keys_only();
            }
            let page = feed.link.get(from.clone(), options).await?;
            if revision == 0 {
                revision = page.header().map_or(0, |header| header.revision());
            }
            for kv in page.kvs() {
                match feed.space.key(kv.key()) {
                    Some(key) => visit(key, kv),
                    None => tracing::warn!(
                        name = %kv.key().escape_ascii(),
                        "etcd.key_malformed: this name is no key"
                    ),
                }
            }
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), b"\0"].concat(),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Returns at most `limit` keys in etcd after `after` for which `is_wanted` holds, in key order.
pub async fn read_keys_after(
    feed: &Feed,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
    is_wanted: impl Fn(&Key) -> bool,
) -> Result<Vec<Key>, LinkError> {
    let after = after.map(|key| [feed.space.name(key).as_bytes(), b"\0"].concat());
    let mut keys = Vec::new();
    for (from, to) in feed.space.ranges(prefix) {
        let mut from = after.clone().map_or(from.clone(), |after| after.max(from));
        while keys.len() < limit && from < to {
            let page = i64::try_from(limit - keys.len()).unwrap_or(PAGE_KEYS).min(PAGE_KEYS);
            let options =
                GetOptions::new().with_range(to.clone()).with_limit(page).with_keys_only();
            let page = feed.link.get(from, options).await?;
            let found = page.kvs().iter().filter_map(|kv| feed.space.key(kv.key()));
            keys.extend(found.filter(|key| is_wanted(key)));
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), b"\0"].concat(),
                _ => break,
            }
        }
    }
    Ok(keys)
}
