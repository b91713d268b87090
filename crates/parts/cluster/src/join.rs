//! Redeems an invitation: the new node proves the secret to the member that issued it, which enters
//! it on the roster and hands over what every member holds.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use model::hex::{from_hex, to_hex};
use model::secrets::SealingRecord;
use model::time::CLOCK_AHEAD_MAX_MS;
use model::{NodeId, Timestamp, TypedKey};
use serde::{Deserialize, Serialize};
use store_core::NodeTag;
use store_core::sync::message::ClusterId;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::frame::{GREETING_BYTES_MAX, Versions, read_json, write_json};
use super::identity::{self, Authority, KeyPin, Membership, Seed, fingerprint, pin_of};
use super::invitation::{Redeemed, Secret, Token};
use super::net::Net;
use super::options::PeerOptions;
use super::roster::{self, ADDRESSES_MAX, Roster};
use super::tls;
use runtime::driver::Clock;
use store::lookup_record;

const FORMAT: u32 = 1;
/// The time limit of the whole exchange, with a write of the roster.
const JOIN_MAX: Duration = Duration::from_secs(30);
/// The age that a request may have on loaded machines; smaller differences show when changes
/// travel.
const ON_THE_WAY_MAX_MS: u64 = 10_000;
/// The time limit of calling back: a machine that is there answers at once, and the exchange has to
/// go on after this.
const CALL_BACK_MAX: Duration = Duration::from_secs(5);
/// The number of members named to a new node, which needs one that answers.
const SEEDS_MAX: usize = 16;
/// The size of an answer in bytes: certificate, key and the seeds' addresses.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct JoinRequest {
    v: u32,
    secret: String,
    node: NodeId,
    addresses: Vec<String>,
    /// The pin of the key that the new node will show; `None` from a version without pins.
    #[serde(default)]
    pin: Option<String>,
    /// The new node's clock; `None` from a version that does not say.
    #[serde(default)]
    now_ms: Option<u64>,
    /// The new node's versions; `None` from a version that does not say.
    #[serde(default)]
    versions: Option<Versions>,
    /// Whether the new node is to keep no store.
    #[serde(default)]
    guest: bool,
    /// Whether the new node can open sealed secrets.
    #[serde(default)]
    opens_secrets: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JoinAnswer {
    Welcome { cluster: String, certificate: String, key: String, listed: u64, seeds: Vec<Seed> },
    Refused { reason: String },
}

/// Serves a request to join, on the issuer's side.
pub async fn serve(
    net: &Net,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> anyhow::Result<NodeId> {
    let exchange = async {
        let request: JoinRequest = read_json(&mut stream, GREETING_BYTES_MAX).await?;
        let node = request.node.clone();
        let (answer, admitted) = match admit(net, request).await {
            Ok(welcome) => (welcome, Ok(node)),
            Err(error) => (JoinAnswer::Refused { reason: format!("{error:#}") }, Err(error)),
        };
        write_json(&mut stream, &answer).await?;
        stream.shutdown().await.ok();
        admitted
    };
    timeout(JOIN_MAX, exchange).await.map_err(|_| anyhow!("redeeming took too long"))?
}

async fn admit(net: &Net, request: JoinRequest) -> anyhow::Result<JoinAnswer> {
    ensure!(
        request.v == FORMAT,
        "the two nodes run versions of Cortex that differ too much: start the same on both"
    );
    let well_formed = |address: &String| {
        address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && host.len() <= 255 && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    ensure!(
        !request.addresses.is_empty()
            && request.addresses.len() <= ADDRESSES_MAX
            && request.addresses.iter().all(well_formed),
        "the new node does not say where it listens; start it with --listen HOST:PORT"
    );
    if let Some(theirs) = request.versions {
        net.versions.agree(theirs)?;
    }
    check_clock(net.now(), request.now_ms)?;
    check_reachable(net, &request.addresses).await?;
    let secret = Secret(from_hex(&request.secret).context("the secret is malformed")?);
    if !request.guest && !request.opens_secrets {
        check_secrets_are_clear(net).await?;
    }
    let JoinRequest { node, addresses, pin, guest, .. } = request;
    let pin = pin.map(|pin| from_hex(&pin).context("the new node's key is malformed"));
    let pin = pin.transpose()?;
    let redeemed = net.book().redeem(net.now(), &secret, &node)?;
    let entered = match guest {
        true => enter_guest(net, redeemed, &node, addresses, pin).await,
        false => enter(net, redeemed, &node, addresses, pin).await,
    };
    if entered.is_err() && redeemed == Redeemed::First {
        net.book().restore(&secret);
    }
    entered
}

/// Refuses a build from before sealed secrets where they are sealed: what it runs would lack its
/// variables.
async fn check_secrets_are_clear(net: &Net) -> anyhow::Result<()> {
    let record: Option<SealingRecord> = lookup_record(&*net.store, TypedKey::Sealing.key()).await?;
    ensure!(
        record.is_none_or(|record| record.seals.is_none()),
        "this cluster's secrets are sealed, and the new node runs a version of Cortex that cannot \
         open them: install the version of the others there"
    );
    Ok(())
}

/// Checks the new node's clock; if it were wrong, its changes would be refused later, one by one.
fn check_clock(now: Timestamp, theirs: Option<u64>) -> anyhow::Result<()> {
    let Some(theirs) = theirs else { return Ok(()) };
    let (ahead, behind) = (theirs.saturating_sub(now.0), now.0.saturating_sub(theirs));
    let word = if ahead > 0 { "ahead of" } else { "behind" };
    ensure!(
        ahead <= CLOCK_AHEAD_MAX_MS && behind <= CLOCK_AHEAD_MAX_MS + ON_THE_WAY_MAX_MS,
        "the new node's clock is {:.1} s {word} this one's: set it right (`timedatectl set-ntp true`), \
         then use the invitation again",
        ahead.max(behind) as f64 / 1000.0
    );
    Ok(())
}

/// Checks that the new node can be called, since others do so for replication and for requests to
/// its instances.
async fn check_reachable(net: &Net, addresses: &[String]) -> anyhow::Result<()> {
    let mut failed = String::new();
    for address in addresses {
        match timeout(CALL_BACK_MAX, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => failed = format!("{address}: {error}"),
            Err(_) => failed = format!("{address}: no answer within {} s", CALL_BACK_MAX.as_secs()),
        }
    }
    bail!(
        "node {} cannot reach the new one at {failed}; let a firewall there pass that port, or \
         start it with --listen HOST:PORT and, behind a forwarded port, --advertise HOST:PORT; \
         the invitation can still be used",
        net.node
    )
}

async fn enter(
    net: &Net,
    redeemed: Redeemed,
    node: &NodeId,
    addresses: Vec<String>,
    pin: Option<KeyPin>,
) -> anyhow::Result<JoinAnswer> {
    let (tag, replication) = (NodeTag::from(node), net.store_role.keeper()?);
    let known = tag == replication.node() || replication.roster().contains(&tag);
    ensure!(
        redeemed == Redeemed::Again || !known,
        "node {node} is a member already: start it without --join, or, if it lost its data, \
         remove it first (`cortex store del cluster::nodes::{node}`)"
    );
    ensure!(
        !net.store_role.is_joining(),
        "this node is still joining itself; try again when it has caught up"
    );
    if !known {
        let entry = TypedKey::Member(node.clone());
        roster::enter(&*net.store, entry, node, addresses.clone(), pin, net.now()).await?;
    }
    // There may be an address of an earlier stay, or of the attempt before.
    if net.store.lookup(&roster::address_key(node)).await?.is_some() || known {
        roster::tell_address(&*net.store, node, addresses, pin).await?;
    }
    let listed = replication.listed(tag).context("it was removed again meanwhile")?;
    welcome(net, node, roster::read(&*net.store).await?, listed.0)
}

/// Enters a guest on the roster, but not among the members that the store counts on.
async fn enter_guest(
    net: &Net,
    redeemed: Redeemed,
    node: &NodeId,
    addresses: Vec<String>,
    pin: Option<KeyPin>,
) -> anyhow::Result<JoinAnswer> {
    let known = *node == net.node || roster::is_listed(&*net.store, node).await?;
    ensure!(
        redeemed == Redeemed::Again || !known,
        "node {node} is a member already: start it without --join, or remove it first (`cortex \
         nodes remove {node}`)"
    );
    net.store_role.keeper()?;
    if !known {
        let entry = TypedKey::Guest(node.clone());
        roster::enter(&*net.store, entry, node, addresses.clone(), pin, net.now()).await?;
    }
    roster::tell_address(&*net.store, node, addresses, pin).await?;
    welcome(net, node, roster::read(&*net.store).await?, 0)
}

fn welcome(net: &Net, node: &NodeId, roster: Roster, listed: u64) -> anyhow::Result<JoinAnswer> {
    // A member without a store could give none to the new node.
    let Roster { addresses, pins, .. } = roster.keepers();
    let found = addresses.into_iter().filter(|(id, addresses)| id != node && !addresses.is_empty());
    let seed = |(id, addresses)| {
        let pin = pins.get(&id).map(|pin| to_hex(pin));
        Seed { id, addresses, pin }
    };
    let mut seeds: Vec<Seed> = found.map(seed).collect();
    // The issuer of the invitation is the first to be asked.
    seeds.sort_by_key(|seed| seed.id != net.node);
    seeds.truncate(SEEDS_MAX);
    Ok(JoinAnswer::Welcome {
        cluster: to_hex(&net.tls.cluster.0),
        certificate: net.authority.certificate_pem().into(),
        key: net.authority.key_pem(),
        listed,
        seeds,
    })
}

/// Redeems an invitation, on the new node's side. What it gets is durable when this returns; the
/// store is told when it opens.
pub async fn redeem(
    dir: &Path,
    token: &Token,
    node: &NodeId,
    listen: SocketAddr,
    options: &PeerOptions,
) -> anyhow::Result<Membership> {
    if let Some(held) = Membership::load(dir)? {
        if held.redeemed.as_deref() == Some(&token.trace()) {
            return Ok(Membership { listen: Some(listen), ..held });
        }
        ensure!(
            held.redeemed.is_none() || held.id() == token.cluster,
            "the invitation is for another cluster than this node has joined before; to run a \
             second node on this machine, give it a --data-dir, --listen and --http of its own; \
             to leave the other cluster for good, remove this node there, then start anew with an \
             empty --data-dir"
        );
    }
    let pin = identity::pin_of_key(&identity::node_key(dir)?);
    let asking = ask(token, node, &pin, listen, options);
    let answer = timeout(JOIN_MAX, asking).await.map_err(|_| {
        anyhow!(
            "no answer in time: does that node run, does a firewall let this machine through, and \
             is that its address as seen from here? If not: `cortex nodes invite --address \
             HOST:PORT` there"
        )
    });
    let answer = answer.and_then(|answer| answer).with_context(|| {
        format!("the invitation could not be redeemed at {} (node {})", token.address, token.issuer)
    })?;
    let (answer, issuer) = answer;
    let (certificate, key, cluster, listed, seeds) = match answer {
        JoinAnswer::Refused { reason } => {
            bail!("node {} does not let this one in: {reason}", token.issuer)
        }
        JoinAnswer::Welcome { certificate, key, cluster, listed, seeds } => {
            (certificate, key, cluster, listed, seeds)
        }
    };
    let cluster = ClusterId(from_hex(&cluster).context("the cluster's id is malformed")?);
    let authority = Authority::from_pem(&certificate, &key).context("the cluster's authority")?;
    ensure!(
        cluster == token.cluster
            && fingerprint(&authority.certificate, &issuer) == token.fingerprint,
        "the answer is not that of the cluster that the invitation is for"
    );
    // Without the authority the membership is of no use, so it comes last.
    authority.save(dir)?;
    let membership = Membership {
        redeemed: Some(token.trace()),
        joining: !options.guest,
        guest: options.guest,
        listed,
        listen: Some(listen),
        seeds,
        ..Membership::of(cluster)
    };
    membership.save(dir)?;
    tracing::info!(cluster = to_hex(&cluster.0), issuer = %token.issuer, "peer.joined");
    Ok(membership)
}

async fn ask(
    token: &Token,
    node: &NodeId,
    pin: &KeyPin,
    listen: SocketAddr,
    options: &PeerOptions,
) -> anyhow::Result<(JoinAnswer, KeyPin)> {
    let stream = TcpStream::connect(&token.address)
        .await
        .context("it cannot be reached: does that node run, and does a firewall let it through?")?;
    let towards = stream.peer_addr()?.ip();
    let address = options.advertise.unwrap_or_else(|| roster::reachable_at(listen, Some(towards)));
    let (config, name) = tls::joining(token.fingerprint, token.cluster, &token.issuer)?;
    let mut stream = TlsConnector::from(config).connect(name, stream).await.context(
        "who answers there is not the node that issued it, or none of its invitations is open any \
         more: one holds for an hour, for one node, and while the node that issued it runs; make a \
         new one there with `cortex nodes invite`",
    )?;
    let request = JoinRequest {
        v: FORMAT,
        secret: to_hex(&token.secret.0),
        node: node.clone(),
        addresses: vec![address.to_string()],
        pin: Some(to_hex(pin)),
        now_ms: Some(Clock::start_off(options.clock_off).now().0),
        versions: Some(options.versions),
        guest: options.guest,
        opens_secrets: true,
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let issuer = pin_of(shown.context("it showed no certificate")?)?;
    write_json(&mut stream, &request).await?;
    Ok((read_json(&mut stream, ANSWER_BYTES_MAX).await?, issuer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_told_of_at_the_door() {
        let now = Timestamp(1_700_000_000_000);
        for good in [None, Some(now.0), Some(now.0 + CLOCK_AHEAD_MAX_MS)] {
            assert!(check_clock(now, good).is_ok(), "{good:?}");
        }
        for (theirs, word) in [(now.0 + 7_200_000, "7200.0 s ahead of"), (0, "s behind")] {
            let said = check_clock(now, Some(theirs)).unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("timedatectl"), "{said}");
        }
    }
}
