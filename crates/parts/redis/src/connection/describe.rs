//! Describes the server: `COMMAND`, `INFO`, `CONFIG`.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store_core::resp::glob;

use super::{Connection, Problem, Words};
use crate::table;
use crate::table::{Spec, TABLE};
use store::INLINE_VALUE_MAX;
use store::bus::SubscriptionKind;

/// The version of Redis whose clients find here what they look for; many ask for it.
pub const COMPATIBLE_VERSION: &str = "7.0.0";
/// The longest `WAIT`: for ever is a day.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The settings that tools ask for, with the answers that are true of this store.
const CONFIGURATION: &[(&str, &str)] = &[
    ("appendfsync", "always"),
    ("appendonly", "yes"),
    ("databases", "1"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("notify-keyspace-events", "AKE"),
    ("save", ""),
    ("timeout", "0"),
];

impl Connection {
    pub(super) fn command(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let named = |first| words.from(first).map(table::find);
        if words.len() == 1 {
            self.replies.array(TABLE.len());
            TABLE.iter().for_each(|spec| self.write_spec(Some(spec)));
        } else if words.is(1, "COUNT") {
            self.replies.integer(TABLE.len() as i64);
        } else if words.is(1, "INFO") {
            let specs: Vec<_> = named(2).collect();
            self.replies.array(specs.len());
            specs.into_iter().for_each(|spec| self.write_spec(spec));
        } else if words.is(1, "LIST") {
            self.replies.array(TABLE.len());
            TABLE.iter().for_each(|spec| self.replies.text(&spec.name.to_ascii_lowercase()));
        } else if words.is(1, "DOCS") {
            let specs: Vec<&Spec> = if words.len() == 2 {
                TABLE.iter().collect()
            } else {
                named(2).flatten().collect()
            };
            self.replies.map(specs.len());
            for spec in specs {
                self.replies.text(&spec.name.to_ascii_lowercase());
                self.replies.map(3);
                self.replies.text("summary");
                self.replies.text(spec.summary);
                self.replies.text("since");
                self.replies.text("1.0.0");
                self.replies.text("group");
                let own = spec.name.starts_with("CORTEX.");
                self.replies.text(if own { "module" } else { "generic" });
            }
        } else {
            return Err(Problem::error("COMMAND has COUNT, INFO, LIST and DOCS"));
        }
        Ok(())
    }

    fn write_spec(&mut self, spec: Option<&Spec>) {
        let Some(spec) = spec else { return self.replies.null() };
        self.replies.array(6);
        self.replies.text(&spec.name.to_ascii_lowercase());
        self.replies.integer(spec.arity.into());
        self.replies.array(1);
        self.replies.simple(if spec.writes { "write" } else { "readonly" });
        let (first, last, step) = spec.keys;
        [first, last, step].into_iter().for_each(|number| self.replies.integer(number.into()));
    }

    pub(super) fn config(&mut self, words: Words<'_>) -> Result<(), Problem> {
        if words.is(1, "GET") && words.len() > 2 {
            let wanted = |name: &str| {
                words.from(2).any(|p| glob::matches(&p.to_ascii_lowercase(), name.as_bytes()))
            };
            let found: Vec<_> = CONFIGURATION.iter().filter(|(name, _)| wanted(name)).collect();
            self.replies.map(found.len());
            for (name, value) in found {
                self.replies.text(name);
                self.replies.text(value);
            }
        } else if words.is(1, "SET") && words.is(2, "notify-keyspace-events") {
            // All notifications are always sent to clients that subscribe to them.
            self.replies.ok();
        } else if words.is(1, "RESETSTAT") {
            self.context.clients.commands.store(0, Ordering::Relaxed);
            self.replies.ok();
        } else {
            return Err(Problem::error(
                "CONFIG has GET and RESETSTAT; settings are options of `cortex store serve`",
            ));
        }
        Ok(())
    }

    pub(super) async fn info(&mut self) -> Result<(), Problem> {
        if let Some(text) = self.info_of_space().await? {
            self.replies.verbatim(&text);
            return Ok(());
        }
        let context = &self.context;
        let now = context.clock.now();
        let mut text = String::new();
        let (keys, head) = (context.store.count().await?, context.store.head().await?);
        let replication = context.store.replication();
        let alarms = replication.map(|it| it.state().alarms).unwrap_or_default();
        let mut rows = vec![
            ("# Server", String::new()),
            ("redis_version", COMPATIBLE_VERSION.into()),
            ("cortex_version", env!("CARGO_PKG_VERSION").into()),
            ("redis_mode", "standalone".into()),
            ("process_id", std::process::id().to_string()),
            ("node", context.node.to_string()),
            ("uptime_in_seconds", now.since(context.started).as_secs().to_string()),
            ("# Clients", String::new()),
            ("connected_clients", context.clients.connected().to_string()),
            ("clients_in_lanes", context.clients.in_lanes.load(Ordering::Relaxed).to_string()),
            ("maxclients", context.connections_max.to_string()),
            ("# Persistence", String::new()),
            ("aof_enabled", "1".into()),
            ("inline_value_bytes_max", INLINE_VALUE_MAX.to_string()),
            ("# Stats", String::new()),
            ("total_connections_received", context.clients.accepted().to_string()),
            (
                "total_commands_processed",
                context.clients.commands.load(Ordering::Relaxed).to_string(),
            ),
            ("pubsub_channels", context.bus.count(SubscriptionKind::Channel).to_string()),
            ("pubsub_patterns", context.bus.count(SubscriptionKind::Pattern).to_string()),
            ("# Replication", String::new()),
            ("role", "master".into()),
            ("history", head),
            ("alarms", alarms.len().to_string()),
        ];
        rows.extend(alarms.iter().map(|alarm| ("alarm", alarm.to_string())));
        rows.push(("# Keyspace", String::new()));
        rows.push(("db0", format!("keys={keys},expires=0,avg_ttl=0")));
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = match name.starts_with('#') {
                true if text.is_empty() => write!(text, "{name}\r\n"),
                true => write!(text, "\r\n{name}\r\n"),
                false => write!(text, "{name}:{value}\r\n"),
            };
        }
        self.replies.verbatim(&text);
        Ok(())
    }

    pub(super) fn time(&mut self) -> Result<(), Problem> {
        let now = self.context.clock.now().0;
        self.replies.array(2);
        self.replies.text(&(now / 1000).to_string());
        self.replies.text(&(now % 1000 * 1000).to_string());
        Ok(())
    }

    pub(super) async fn wait_for_peers(&mut self, words: Words<'_>) -> Result<(), Problem> {
        let wanted = usize::try_from(words.number(1)?).unwrap_or(0);
        let limit = match u64::try_from(words.number(2)?) {
            Ok(0) => WAIT_MAX,
            Ok(ms) => Duration::from_millis(ms).min(WAIT_MAX),
            Err(_) => return Err(Problem::error("timeout is negative")),
        };
        let holding = self.context.bus.holding(wanted, limit).await;
        self.replies.integer(i64::try_from(holding).unwrap_or(i64::MAX));
        Ok(())
    }
}
