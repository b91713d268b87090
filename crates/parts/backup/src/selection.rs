//! What of a store is the cluster, and what is only how its nodes were doing. Pure.

use model::backup::BackupKey;
use model::{Key, TypedKey};

/// The destiny of a key in another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destiny {
    Travels,
    /// The key is about the nodes of this cluster, or made anew from what travels.
    Stays,
    /// The key is written last, as it lets an application start.
    Last,
}

/// The beginnings of keys about nodes and processes, also those that this build does not know.
const OF_NODES: [&str; 8] = [
    "instance",
    "probe",
    "node",
    "cluster::nodes",
    "cluster::drained",
    "cluster::upgrade",
    "cluster::binary",
    "cluster::secrets",
];

pub fn destiny(key: &Key) -> Destiny {
    if key.is_local() || OF_NODES.iter().any(|root| is_below(key, root)) {
        return Destiny::Stays;
    }
    match TypedKey::parse(key) {
        Some(TypedKey::Rollout(_)) => Destiny::Last,
        // Builds are made again, and an authority that asks, or an order, is of the node that has
        // it. Which node had the files travels: without them, the application waits for them.
        Some(
            TypedKey::Artefact(..)
            | TypedKey::Move(_)
            | TypedKey::TokenUse(..)
            | TypedKey::AcmeChallenge(_)
            | TypedKey::AcmeOrder(_)
            | TypedKey::AcmeRegistration
            | TypedKey::ImportUnderWay
            | TypedKey::Backup(BackupKey::Order)
            | TypedKey::Backup(BackupKey::Log),
        ) => Destiny::Stays,
        _ => Destiny::Travels,
    }
}

/// Returns whether a cluster with this key is more than one that was just started: what people or
/// applications put there. Its own audit, the terms that were agreed to with `cortex up`, and the
/// ends of applications are not.
pub fn is_content(key: &Key) -> bool {
    let beginnings = ["audit", "acme", "cluster"];
    destiny(key) != Destiny::Stays && !beginnings.iter().any(|root| is_below(key, root))
}

fn is_below(key: &Key, root: &str) -> bool {
    let rest = key.as_str().strip_prefix(root);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_decided_travels_and_what_nodes_say_of_themselves_stays() {
        let check = |expected: Destiny, keys: &[&str]| {
            for key in keys {
                assert_eq!(destiny(&key.parse().unwrap()), expected, "{key}");
            }
        };
        check(
            Destiny::Travels,
            &[
                "app::blog::spec",
                "app::blog::config",
                "app::blog::config::1::n1",
                "app::blog::release::1::n1",
                "app::blog::outcome::1::n1",
                "app::blog::cron::nightly",
                "app::blog::holder",
                "access::users::ana",
                "access::teams::shop",
                "cert::shop.example.org",
                "acme::account",
                "acme::settings",
                "audit::n1::0000000000000001-00000001",
                "cluster::isolation",
                "cluster::destroyed::blog::5",
                "backup::settings",
                "mine::of::redis",
                "nodes",
                "clusters::nodes::x",
            ],
        );
        check(Destiny::Last, &["app::blog::rollout"]);
        check(
            Destiny::Stays,
            &[
                "local::note",
                "instance::blog::web::1::n1",
                "probe::n1::blog::web::1",
                "node::n1::info",
                "node::n1::of::a::newer::build",
                "cluster::nodes::n1",
                "cluster::nodes::n1::guest",
                "cluster::secrets",
                "cluster::secrets::rotate",
                "cluster::upgrade",
                "cluster::drained::n1",
                "cluster::import",
                "backup::order",
                "backup::log",
                "app::blog::move",
                "acme::challenge::shop.example.org",
                "acme::order::shop.example.org",
                "acme::registration",
            ],
        );
    }

    #[test]
    fn a_cluster_that_was_just_started_holds_nothing() {
        let is_content = |key: &str| is_content(&key.parse().unwrap());
        for key in [
            "node::n1::info",
            "cluster::nodes::n1",
            "cluster::secrets",
            "cluster::import",
            "cluster::destroyed::blog::5",
            "audit::n1::x",
            "acme::settings",
            "acme::account",
        ] {
            assert!(!is_content(key), "{key}");
        }
        let redis_user = "access::reader";
        for key in ["app::blog::spec", "access::users::ana", redis_user, "cert::a.example", "mine"]
        {
            assert!(is_content(key), "{key}");
        }
    }
}
