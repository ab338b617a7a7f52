# The operator as a release with the next contract version would be: only the number is another one.
FROM localhost/cprjob-operator:dev
USER 0
RUN cd /opt/cprjob/source/cpr_contract && version=$(sed -n 's/^CONTRACT_VERSION = //p' __init__.py) \
 && sed -i "s/^CONTRACT_VERSION = .*/CONTRACT_VERSION = $((version + 1))/" __init__.py \
 && python3 -m compileall -q -f --invalidation-mode unchecked-hash .
USER 65532:65532
