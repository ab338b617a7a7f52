#!/usr/bin/env bash
# A real Apache Kafka broker (KRaft, one node): broker.sh lib, or broker.sh start FOLDER HOST PORT.
# `lib` fetches its jars from Maven and formats an empty log, once. `start` prints the broker's process id once it
# listens, and uses the log that the folder has. If the folder has secured.properties, the broker also listens with SSL
# and SASL_SSL, on the ports PORT + 2 and PORT + 3, with these settings. Needs Java 17 and Maven.
set -euo pipefail
version=${KAFKA_VERSION:-4.1.0}
lib=${XDG_CACHE_HOME:-$HOME/.cache}/cprjob/kafka-$version
java=(java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$lib/*")

# settings FOLDER HOST PORT
settings() {
  local secured=
  [ ! -e "$1/secured.properties" ] || secured=,SSL://$2:$(($3 + 2)),SASL_SSL://$2:$(($3 + 3))
  cat <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@$2:$(($3 + 1))
listeners=PLAINTEXT://$2:$3,CONTROLLER://$2:$(($3 + 1))$secured
advertised.listeners=PLAINTEXT://$2:$3$secured
controller.listener.names=CONTROLLER
log.dirs=$1/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
CONF
  [ -z "$secured" ] || cat "$1/secured.properties"
}

lib() {
  [ -e "$lib/.complete" ] && return
  mkdir -p "$lib"
  cat >"$lib/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>cprjob</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency></dependencies></project>
POM
  mvn -q -B -f "$lib/pom.xml" dependency:copy-dependencies -DoutputDirectory="$lib" >&2
  rm -rf "$lib/data"
  settings "$lib" 127.0.0.1 9092 >"$lib/server.properties"
  "${java[@]}" kafka.tools.StorageTool format -t cprjob-tests-of-kafka0 -c "$lib/server.properties" >&2
  touch "$lib/.complete"
}

start() {
  mkdir -p "$1"
  settings "$1" "$2" "$3" >"$1/server.properties"
  [ -e "$1/data" ] || cp -r "$lib/data" "$1/data"
  setsid "${java[@]}" -Xmx400m kafka.Kafka "$1/server.properties" >>"$1/broker.log" 2>&1 </dev/null &
  echo $! >"$1/pid"
  for _ in $(seq 480); do # a loaded machine starts slowly
    (echo >"/dev/tcp/$2/$3") 2>/dev/null && { cat "$1/pid"; exit 0; }
    kill -0 "$(cat "$1/pid")" 2>/dev/null || break
    sleep 0.5
  done
  kill "$(cat "$1/pid")" 2>/dev/null || true
  echo "the broker does not answer; see $1/broker.log" >&2
  exit 1
}

case ${1:-} in
  lib) lib ;;
  start) lib; start "$2" "$3" "$4" ;;
  *) echo "usage: broker.sh lib | broker.sh start FOLDER HOST PORT" >&2; exit 2 ;;
esac
