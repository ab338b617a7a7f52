#!/usr/bin/env bash
# A real Apache Kafka broker (KRaft, one node) on loopback: broker.sh lib, or broker.sh start FOLDER PORT.
# `lib` fetches its jars from Maven once. `start` prints the broker's process id once it listens, and uses
# the data that the folder has. Needs Java 17 and Maven.
set -euo pipefail
version=${KAFKA_VERSION:-4.1.0}
lib=${XDG_CACHE_HOME:-$HOME/.cache}/cprjob/kafka-$version

fetch() {
  [ -e "$lib/.complete" ] && return
  mkdir -p "$lib"
  cat >"$lib/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>cprjob</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency></dependencies></project>
POM
  mvn -q -B -f "$lib/pom.xml" dependency:copy-dependencies -DoutputDirectory="$lib" >&2
  touch "$lib/.complete"
}

start() {
  local folder=$1 port=$2
  mkdir -p "$folder"; cd "$folder"
  cat >server.properties <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$PWD/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
${KAFKA_SETTINGS:-}
CONF
  # The metadata is written first: only then is the folder formatted.
  if [ ! -e data/meta.properties ]; then
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'xx' | tr -d '=')
    java -XX:TieredStopAtLevel=1 -cp "$lib/*" kafka.tools.StorageTool format -t "$id" -c server.properties >&2
  fi
  setsid java -Xmx400m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$lib/*" kafka.Kafka server.properties >>broker.log 2>&1 </dev/null &
  echo $! >pid
  for _ in $(seq 480); do  # a loaded machine starts slowly
    (echo >"/dev/tcp/127.0.0.1/$port") 2>/dev/null && { cat pid; exit 0; }
    kill -0 "$(cat pid)" 2>/dev/null || break
    sleep 0.5
  done
  kill "$(cat pid)" 2>/dev/null || true
  echo "the broker does not answer; see $PWD/broker.log" >&2; exit 1
}

case ${1:-} in
  lib) fetch ;;
  start) fetch; start "$2" "$3" ;;
  *) echo "usage: broker.sh lib | broker.sh start FOLDER PORT" >&2; exit 2 ;;
esac
