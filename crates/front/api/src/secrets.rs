//! How secrets are sealed, the order to seal them with another key, and what a node knew that was
//! removed. Shows ids of keys and names of variables, never a key or a value.

use std::collections::BTreeMap;

use ::secrets::{Next, Wait};
use axum::extract::State;
use axum::{Extension, Json};
use model::backup::BackupKey;
use model::record::{RECORD_VERSION, Unknown};
use model::secrets::{NodeSecrets, RotationOrder, SealingKeyId, SealingRecord};
use model::{NodeId, Prefix, Timestamp, TypedKey};

use super::caller::Caller;
use super::json_body::OptionalJson;
use super::problem::Problem;
use super::records::{self, ConfigVariables};
use super::{Api, Shared};
use api_types::secrets::{RotationAsked, SecretsCount, SecretsMember, SecretsShown};
use store::lookup_record;

pub async fn show(State(api): State<Shared>) -> Result<Json<SecretsShown>, Problem> {
    Ok(Json(shown(&api, Vec::new()).await?))
}

/// Orders another key. The members come to it by themselves, whoever of them is lost on the way.
pub async fn rotate(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    OptionalJson(asked): OptionalJson<RotationAsked>,
) -> Result<Json<SecretsShown>, Problem> {
    let _changing = api.changes.lock().await;
    let mut removed = Vec::new();
    if asked.give_up_lost {
        let Some(secrets) = &api.secrets else {
            let what = "this node keeps no store, and cannot tell which secrets are lost";
            return Err(Problem::invalid("no_store", what).hint("ask a node that keeps one"));
        };
        let lost = secrets.give_up_lost().await;
        let lost = lost.map_err(|error| Problem::conflict("not_lost", format!("{error:#}")))?;
        removed.extend(lost.into_iter().map(String::from));
    }
    let key_there = records::read::<SealingRecord>(&*api.store, TypedKey::Sealing).await?;
    if key_there.is_none_or(|record| record.seals.is_none()) && !asked.give_up_lost {
        let what = "secrets are not sealed yet, so there is no key to change";
        return Err(Problem::conflict("not_sealed", what).hint(
            "`cortex secrets` says what is waited for; a store in etcd keeps its values as they are",
        ));
    }
    order(&api, caller.name()).await?;
    Ok(Json(shown(&api, removed).await?))
}

/// Writes the order for another key.
pub async fn order(api: &Api, reason: String) -> Result<(), Problem> {
    let order =
        RotationOrder { v: RECORD_VERSION, asked_at: api.now(), reason, unknown: Unknown::new() };
    records::write(&*api.store, TypedKey::RotationOrder, &order).await
}

async fn shown(api: &Api, removed: Vec<String>) -> Result<SecretsShown, Problem> {
    let internal = |error: anyhow::Error| Problem::internal(format!("{error:#}"));
    let store = &*api.store;
    let record: Option<SealingRecord> = records::read(store, TypedKey::Sealing).await?;
    let record = record.unwrap_or_default();
    let order: Option<RotationOrder> = records::read(store, TypedKey::RotationOrder).await?;
    let mut members = BTreeMap::new();
    for key in store.keys(&prefix("cluster::nodes")).await? {
        if let Some(TypedKey::Member(node)) = TypedKey::parse(&key) {
            let said = TypedKey::NodeSecrets(node.clone()).key();
            members
                .insert(node, lookup_record::<NodeSecrets>(store, said).await.map_err(internal)?);
        }
    }
    let (mut values, mut next) = (Vec::new(), None);
    if let Some(secrets) = &api.secrets {
        let picture = secrets.picture().await.map_err(internal)?;
        next = Some(picture.next());
        values = picture
            .values
            .iter()
            .map(|(key, count)| counted(&picture.held, *key, *count))
            .collect();
    }
    let asked_at = order.as_ref().map(|order| order.asked_at);
    let settled = match &next {
        Some(next) => *next == Next::Settled && asked_at <= record.made_for,
        None => has_settled(&record, asked_at, &members),
    };
    let file = api.secrets.as_ref().map(|secrets| secrets.file().display().to_string());
    Ok(SecretsShown {
        sealed_with: record.seals.map(String::from),
        next: record.next.map(String::from),
        members: members.into_iter().map(|(node, said)| member(node, said)).collect(),
        values,
        settled,
        waits: next.and_then(|next| waits(next, file.as_deref())),
        asked: order.map(|order| format!("{} UTC ({})", order.asked_at.date(), order.reason)),
        removed,
    })
}

/// Returns whether a node without a store can take the rotation for done.
fn has_settled(
    record: &SealingRecord,
    asked: Option<Timestamp>,
    members: &BTreeMap<NodeId, Option<NodeSecrets>>,
) -> bool {
    let one_key = |said: &Option<NodeSecrets>| {
        said.as_ref().is_some_and(|said| said.seals == record.seals && said.holds.len() == 1)
    };
    record.seals.is_some()
        && record.next.is_none()
        && asked <= record.made_for
        && members.values().all(one_key)
}

fn counted(
    held: &std::collections::BTreeSet<SealingKeyId>,
    key: Option<SealingKeyId>,
    count: usize,
) -> SecretsCount {
    let opens = key.is_none_or(|key| held.contains(&key));
    SecretsCount { key: key.map(String::from), count, opens }
}

fn member(node: NodeId, said: Option<NodeSecrets>) -> SecretsMember {
    let keys = |said: &NodeSecrets| said.holds.iter().map(ToString::to_string).collect();
    SecretsMember {
        node: node.to_string(),
        keys: said.as_ref().map(keys),
        sealed_with: said.and_then(|said| said.seals).map(String::from),
    }
}

/// Says what is waited for, in words for people.
fn waits(next: Next, file: Option<&str>) -> Option<String> {
    let list =
        |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let Next::Wait(wait) = next else { return None };
    Some(match wait {
        Wait::Older(nodes) => format!(
            "{} cannot open sealed secrets yet: upgrade what runs an older build, or remove it",
            list(&nodes)
        ),
        Wait::Holding(nodes) => format!(
            "the next key has yet to reach {}: start what is down, or remove it",
            list(&nodes)
        ),
        Wait::Sealing(nodes) => format!(
            "{} did not say yet that the new key seals there: start what is down, or remove it",
            list(&nodes)
        ),
        Wait::Away(nodes) => format!(
            "what {} wrote may not be here yet: start what is down, or remove it",
            list(&nodes)
        ),
        Wait::NoHolder(key) => format!(
            "nobody that runs has the key {key}: put a copy of {} back, or start a member that \
             has it; if all copies are lost, `cortex secrets rotate --give-up-lost` removes what \
             it sealed",
            file.unwrap_or("DATA/cluster/secrets.json")
        ),
        Wait::Dropping(nodes) => format!("the old key has yet to go from {}", list(&nodes)),
        Wait::Coming(count) => format!("{count} secrets are still on their way to this node"),
        Wait::Turn(node) => format!("{node} goes first"),
    })
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a well-formed prefix")
}

/// Returns the names of all secrets, for the person who has to change them elsewhere once a node
/// that could read them is gone.
pub async fn known(api: &Api) -> Result<Vec<String>, Problem> {
    let mut known = Vec::new();
    for root in ["app", "cert", "acme", "backup"] {
        for key in api.store.keys(&prefix(root)).await? {
            match TypedKey::parse(&key) {
                Some(TypedKey::Config(name)) => {
                    let read = records::read(&*api.store, TypedKey::Config(name.clone())).await;
                    let variables: ConfigVariables = read.ok().flatten().unwrap_or_default();
                    let names: Vec<_> = variables.into_keys().collect();
                    if !names.is_empty() {
                        known.push(format!("{name}: {}", names.join(", ")));
                    }
                }
                Some(TypedKey::Certificate(name)) => {
                    known.push(format!("the private key of the certificate for {name}"));
                }
                Some(TypedKey::Backup(BackupKey::Settings)) => {
                    known.push("the pass-phrase of back-ups".into());
                }
                Some(TypedKey::AcmeAccount) => {
                    known.push("the key of the account at the certificate authority".into());
                }
                _ => {}
            }
        }
    }
    Ok(known)
}

/// Returns whether a removed node had the key of the secrets.
pub fn had_key(said: Option<NodeSecrets>) -> bool {
    said.is_some_and(|said| !said.holds.is_empty())
}
